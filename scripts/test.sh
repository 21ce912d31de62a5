#!/usr/bin/env bash
# Installs what is missing, builds everything and runs all tests.
#
#   scripts/test.sh [PRESET]     default: dev; see CMakePresets.json
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-dev}

deploy/install-deps.sh build test
cmake --preset "$preset"
cmake --build --preset "$preset"
ctest --preset "$preset"

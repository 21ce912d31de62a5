#!/usr/bin/env bash
# Installs what is missing, builds everything, runs all tests and each fuzzer for a moment.
#
#   scripts/test.sh [PRESET]     default: dev; see CMakePresets.json
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-dev}

deploy/install-deps.sh build test
cmake --preset "$preset"
cmake --build --preset "$preset"
ctest --preset "$preset"

# Only what the fuzzers need: no libtorch, no server.
cmake --preset fuzz
cmake --build --preset fuzz --target lowerd_fuzzers
test/fuzz/run.sh build/fuzz 5

#!/usr/bin/env bash
# From nothing to a lowered model that runs: installs what is missing, builds, starts a server on a
# free port, lowers parts of the vision model in test/models, runs the artifacts in Debian's Python
# and shows that their outputs equal the original's, and stops the server.
set -euo pipefail
cd "$(dirname "$0")/.."
model=test/models/mobilenet_v2

step() { printf '\n== %s\n' "$*"; }

step "Installing what is missing"
deploy/install-deps.sh build test

step "Building"
cmake --preset release -DLOWERD_BUILD_TESTS=OFF -DLOWERD_BUILD_BENCHMARKS=OFF
cmake --build --preset release
bin=build/release/bin
library=build/release/lib/liblowerd_backend_reference.so

work=$(mktemp -d)
server=
stop() {
  if [ -n "$server" ]; then
    kill "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
  fi
  rm -rf "$work"
}
trap stop EXIT

step "Starting a server on a free port"
"$bin/lowerd" --listen 127.0.0.1:0 --address-file "$work/address" --data-dir "$work/data" \
  --backend-lib "$library" 2>"$work/log" &
server=$!
for _ in $(seq 300); do
  [ -s "$work/address" ] && break
  if ! kill -0 "$server" 2>/dev/null; then cat "$work/log" >&2; exit 1; fi
  sleep 0.1
done
LOWERD_SERVER=$(cat "$work/address")
export LOWERD_SERVER
echo "serving on $LOWERD_SERVER"

step "Lowering three submodules of MobileNetV2 to the backend \"reference\""
"$bin/lowerctl" lower "$model.pt" --target features.1 --target features.2 --target classifier \
  --inputs "$model.inputs.pt" --format pt,ptl,ff --out "$work/out"

step "Running the artifacts in Python with only the backend's library"
/usr/bin/python3 scripts/run_artifact.py --backend-lib "$library" --inputs "$model.inputs.pt" \
  "$model.pt" "$work"/out/mobilenet_v2.lowered.{pt,ptl,ff}

step "Done"
echo "Next: build/release/bin/lowerctl --help, and README.md"

#!/usr/bin/env bash
# Runs every fuzzer for a while; docs/fuzzing.md says more.
#
#   test/fuzz/run.sh BUILD SECONDS [CORPUS]
set -euo pipefail
build=$(realpath "${1:?build folder}")
seconds=${2:?seconds for each fuzzer}
corpus=${3:-$build/fuzz/corpus}
seeds=$(cd "$(dirname "$0")/../lowering/testdata" && pwd)
findings=$build/fuzz

for fuzzer in model_archive pickle artifact frame lowering_request write_request zstd resource_name \
    settings status; do
  own=$corpus/${fuzzer}_fuzzer
  mkdir -p "$own" "$findings"
  case $fuzzer in
    model_archive | artifact)
      cp -n "$seeds"/*.pt "$seeds"/*.ptl "$seeds"/*.ff "$own"
      ;;
    pickle)
      for model in "$seeds"/*.ptl; do
        python3 -c 'import sys, zipfile
for name in zipfile.ZipFile(sys.argv[1]).namelist():
    if name.endswith(".pkl"):
        open(sys.argv[2] + name.replace("/", "_"), "wb").write(zipfile.ZipFile(sys.argv[1]).read(name))
' "$model" "$own/"
      done
      ;;
  esac
  echo "== $fuzzer: $seconds s"
  log=$findings/$fuzzer.log
  if ! "$build/bin/${fuzzer}_fuzzer" -max_total_time="$seconds" -max_len=65536 -timeout=5 \
      -rss_limit_mb=1024 -artifact_prefix="$findings/$fuzzer-" "$own" >"$log" 2>&1; then
    tail -n 40 "$log"
    exit 1
  fi
  tail -n 1 "$log"
done

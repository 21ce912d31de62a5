#!/usr/bin/env bash
# Installs what lowerd needs, from Debian's own packages only. Debian 12 and 13; as root or through
# sudo; safe to run again.
#
#   install-deps.sh [build] [test]     default: both
#
#   build    compiler, CMake and libraries to build everything
#   test     what the tests need besides: Python's torch as judge, PostgreSQL,
#            a browser for the status page, clang's runtime for the fuzzers
set -euo pipefail

build=(
  build-essential ccache clang cmake git ninja-build pkg-config
  libabsl-dev libbenchmark-dev libboost-dev libcli11-dev libcpp-httplib-dev libflatbuffers-dev
  libgmock-dev libgrpc++-dev libgtest-dev libpq-dev libprotobuf-dev libseccomp-dev libsoci-dev
  libspdlog-dev libsqlite3-dev libssl-dev libsystemd-dev libtorch-dev libzstd-dev
  nlohmann-json3-dev prometheus-cpp-dev protobuf-compiler protobuf-compiler-grpc zlib1g-dev
)
test=(
  binutils chromium chromium-driver libclang-rt-dev openssl postgresql python3 python3-grpc-tools python3-grpcio
  python3-numpy python3-selenium python3-torch python3-torchaudio python3-torchvision python3-yaml
  systemd
)

if [ $# -eq 0 ]; then set -- build test; fi
packages=()
for set in "$@"; do
  case $set in
    build) packages+=("${build[@]}") ;;
    test) packages+=("${test[@]}") ;;
    *) echo "install-deps.sh: unknown set '$set' (build, test)" >&2; exit 2 ;;
  esac
done

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "install-deps.sh: everything is installed"
  exit 0
fi

sudo=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "install-deps.sh: run as root (no sudo here); missing: ${missing[*]}" >&2
    exit 1
  fi
  sudo=(sudo)
fi
echo "install-deps.sh: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${sudo[@]}" apt-get update -q
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"

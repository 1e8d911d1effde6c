#!/bin/sh
# Installs the distribution packages Tessera needs, and nothing when all are there.
#   deploy/dependencies.sh build       to build and run the server
#   deploy/dependencies.sh model       to download the model of the quick start
#   deploy/dependencies.sh cuda        for deploy/cuda_toolkit.sh, where there is no CUDA compiler
#   deploy/dependencies.sh ranks       besides, for serving over several ranks: MPI
#   deploy/dependencies.sh release     besides, for deploy/release.sh
#   deploy/dependencies.sh tests       besides, for tests/run.sh
#   deploy/dependencies.sh all-tests   besides, for tests/run.sh --all
# Debian 12; Ubuntu 24.04 as best effort. Root, or sudo.
set -eu

# Beast's coroutines want Boost 1.81 or later; Debian 12's default is 1.74.
boost=libboost1.81-dev
if ! grep -qs '^VERSION_CODENAME=bookworm' /etc/os-release; then boost=libboost-dev; fi

build="g++ cmake ninja-build pkg-config ca-certificates curl jq
  esbuild node-markdown-it node-punycode
  libgrpc++-dev libgrpc-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libabsl-dev
  nlohmann-json3-dev libspdlog-dev $boost libssl-dev libxxhash-dev libpcre2-dev libutf8proc-dev
  libcli11-dev libyaml-cpp-dev prometheus-cpp-dev zlib1g-dev cppzmq-dev"
ranks="$build libmpich-dev mpich"
tests="$ranks git ccache libgtest-dev libgmock-dev libbenchmark-dev libsentencepiece-dev
  python3 python3-venv clang-format-14 clang-tidy-14 chromium chromium-driver"
release="$ranks patchelf dpkg-dev"
all_tests="$tests clang-14 libclang-rt-14-dev haproxy nginx-light procps prometheus
  $release buildah debootstrap systemd-container"

case "${1:-}" in
  build) packages=$build ;;
  model) packages="python3 python3-pip" ;;
  cuda) packages="python3 python3-venv" ;;
  ranks) packages=$ranks ;;
  release) packages=$release ;;
  tests) packages=$tests ;;
  all-tests) packages=$all_tests ;;
  *) sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac

missing=""
for package in $packages; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' ||
    missing="$missing $package"
done
[ -n "$missing" ] || exit 0

sudo=""
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "packages are missing and this is neither root nor has sudo:$missing" >&2; exit 1; }
  sudo=sudo
fi
echo "installing:$missing" >&2
export DEBIAN_FRONTEND=noninteractive
export RUNLEVEL=1  # proxies and Prometheus are for tests: no service is started
$sudo apt-get update -qq >&2
$sudo apt-get install -y -qq --no-install-recommends $missing >&2

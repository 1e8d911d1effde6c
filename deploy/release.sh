#!/bin/sh
# Makes the packages of a release from a build, for Debian 12 without a compiler:
#   deploy/release.sh [--image] [BUILD_FOLDER [OUTPUT_FOLDER]]     default: build/release, build/packages
#   tessera_VERSION_ARCH.deb     apt installs its libraries; with a systemd unit
#   tessera-VERSION-ARCH.tar.gz  has its libraries inside, and runs from any folder
#   tessera-VERSION.spdx.json    bill of materials: every component, with its version
# The build has tessera-server and tessera-load, and libtessera_cuda.so if it is one for CUDA; the packages
# then have it too. deploy/dependencies.sh release installs the tools. The CPU chooses its instruction set
# at start, so one build serves all machines of an architecture. With --image there is the .deb alone, not compressed:
# CUDA's libraries have a gigabyte, and the image that is built takes the package apart at once.
set -eu
cd "$(dirname "$0")/.."
image=""
if [ "${1:-}" = --image ]; then image=1; shift; fi
build=$(realpath "${1:-build/release}")
mkdir -p "${2:-build/packages}"
out=$(realpath "${2:-build/packages}")

for tool in patchelf dpkg-shlibdeps strip; do
  command -v "$tool" >/dev/null || { echo "no $tool here: deploy/dependencies.sh release" >&2; exit 1; }
done
# Without PTX a GPU newer than the build's architectures finds no kernels. An image may be for one architecture.
if [ -z "$image" ] && [ -e "$build/bin/libtessera_cuda.so" ] &&
  ! grep -q '^TESSERA_CUDA_ARCHITECTURES:.*-virtual' "$build/CMakeCache.txt"; then
  echo "$build has no PTX: configure it with TESSERA_CUDA_ARCHITECTURES=80-real;90a-real;90-virtual" >&2
  exit 1
fi
version=$(sed -n 's/^project(tessera VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
arch=$(dpkg --print-architecture)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sh deploy/package/components.sh "$build" >"$work/components"

programs() {  # programs FOLDER: CUDA's libraries beside the backend, if they are not of the distribution
  mkdir -p "$1"
  for program in tessera-server tessera-load libtessera_cuda.so; do
    [ -e "$build/bin/$program" ] || continue
    strip -o "$1/$program" "$build/bin/$program"
  done
  [ -e "$1/libtessera_cuda.so" ] || return 0
  patchelf --force-rpath --set-rpath '$ORIGIN' "$1/libtessera_cuda.so"
  for library in $(ldd "$build/bin/libtessera_cuda.so" | awk '$3 ~ "/nvidia/" {print $3}'); do
    cp -L "$library" "$1/"
  done
}
notices() {  # notices FOLDER: changes, licences and components of a release
  mkdir -p "$1/licenses"
  cp CHANGELOG.md "$work/components" "$1/"
  {
    cat NOTICE
    printf '\nThe programs use these packages of Debian, whose licences are in the folder licenses. \n'
    printf '`apt source PACKAGE=VERSION` fetches the source of each.\n\n'
    awk '$1 == "deb" {print "  " $2 " " $3}' "$work/components"
  } >"$1/NOTICE"
  for package in $(awk '$1 == "deb" {print $2}' "$work/components"); do
    cp "/usr/share/doc/$package/copyright" "$1/licenses/$package.txt"
  done
  for package in $(awk '$4 == "bundled" {print $2}' "$work/components"); do
    cat build/cuda-toolkit/lib/python*/site-packages/"$(echo "$package" | tr - _)"-*.dist-info/[Ll]icense* \
      build/cuda-toolkit/lib/python*/site-packages/"$(echo "$package" | tr - _)"-*.dist-info/licenses/* \
      2>/dev/null >"$1/licenses/$package.txt" || true
    [ -s "$1/licenses/$package.txt" ] || { echo "no licence of $package" >&2; exit 1; }
  done
}
settings() {  # settings FILE MODEL: the defaults, with the small model and a drain that balancers notice
  sed "s|^# model:\$|model: $2|; s|^drain-delay: .*|drain-delay: 5s|; s|^drain-timeout: .*|drain-timeout: 2m|" \
    configs/default.yaml >"$1"
}

# ---- the Debian package. A CUDA backend is opened beside the program, so that programs are in a folder.
root=$work/deb
programs "$root/usr/lib/tessera"
mkdir -p "$root/DEBIAN" "$root/etc/tessera" "$root/usr/bin" "$root/usr/lib/systemd/system" "$root/usr/share/tessera"
ln -s ../lib/tessera/tessera-server ../lib/tessera/tessera-load "$root/usr/bin/"
cp -r models/checkpoints/tessera-tiny "$root/usr/share/tessera/"
settings "$root/etc/tessera/tessera.yaml" /usr/share/tessera/tessera-tiny
cp deploy/package/tessera.service "$root/usr/lib/systemd/system/"
notices "$root/usr/share/doc/tessera"
cp LICENSE "$root/usr/share/doc/tessera/copyright"
echo /etc/tessera/tessera.yaml >"$root/DEBIAN/conffiles"
# The oldest version of each library that has the symbols in use, as the distribution knows them.
mkdir "$work/debian"
printf 'Source: tessera\n\nPackage: tessera\nArchitecture: any\n' >"$work/debian/control"
(cd "$work" && dpkg-shlibdeps -O -ldeb/usr/lib/tessera --ignore-missing-info deb/usr/lib/tessera/* >depends)
depends=$(sed -n 's/^shlibs:Depends=//p' "$work/depends")
[ -n "$depends" ] || { echo "dpkg-shlibdeps names no library" >&2; exit 1; }
cat >"$root/DEBIAN/control" <<TEXT
Package: tessera
Version: $version
Architecture: $arch
Maintainer: Tessera maintainers <maintainers@users.noreply.example>
Installed-Size: $(du -sk "$root" | cut -f1)
Depends: $depends
Recommends: mpich
Section: science
Priority: optional
Description: LLM inference server with a compressed KV cache
 Serves Llama, Mistral and Qwen checkpoints over HTTP (OpenAI's API) and gRPC. Attention runs directly over
 compressed pages of the KV cache; common prefixes of prompts are computed once.
TEXT
dpkg-deb ${image:+-Znone} --root-owner-group --build "$root" "$out/tessera_${version}_$arch.deb" >/dev/null
if [ -n "$image" ]; then exit 0; fi

# ---- the tarball
folder=tessera-$version-$(uname -m)
root=$work/$folder
programs "$root/bin"
mkdir "$root/lib"
cp -r models/checkpoints/tessera-tiny "$root/"
settings "$root/tessera.yaml" tessera-tiny
notices "$root"
cp LICENSE "$root/"
for library in $(ldd "$build"/bin/tessera-server "$build"/bin/tessera-load | awk '$3 ~ "^/" {print $3}' | sort -u); do
  case $(basename "$library") in
    libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.*) continue ;;  # the machine's
  esac
  cp -L "$library" "$root/lib/"
  patchelf --force-rpath --set-rpath '$ORIGIN' "$root/lib/$(basename "$library")"
done
for program in "$root"/bin/tessera-*; do patchelf --force-rpath --set-rpath '$ORIGIN/../lib' "$program"; done
tar -C "$work" --owner=0 --group=0 --sort=name -czf "$out/$folder.tar.gz" "$folder"

sh deploy/package/sbom.sh "$version" <"$work/components" >"$out/tessera-$version.spdx.json"
ls -l "$out"

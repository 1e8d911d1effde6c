# An image with the Debian package of a release (deploy/release.sh), on a bare system:
#   docker build -t tessera . && docker run --rm -p 8080:8080 -p 50051:50051 tessera
# Arguments (--build-arg):
#   BASE      image of Debian 12
#   PRESET    release, or cuda: with CUDA's compiler and libraries as Python packages; run it with --gpus all
#   CUDA_ARCHITECTURES  of the kernels, with PRESET=cuda: 90a-real for Hopper alone. Empty: all that are supported
#   PACKAGES  compiled, or given: the package that deploy/release.sh has left in build/packages. Buildah 1.28 wants
#             to be told either.
#   COMMIT    for --version; the build has no repository
# Over two ranks (each takes 4 MB of shared memory: above 14, give --shm-size more than its 64 MB):
#   docker run --rm -p 8080:8080 -p 50051:50051 --entrypoint tini tessera -- mpirun -n 2 \
#     tessera-server --model /models/tessera-tiny --host 0.0.0.0 --tensor-parallel 2
ARG BASE=debian:12-slim
ARG PACKAGES=compiled

FROM ${BASE} AS build
ARG PRESET=release
ARG CUDA_ARCHITECTURES=
ARG COMMIT=
WORKDIR /src
COPY deploy/dependencies.sh deploy/xgrammar.sh deploy/cuda_toolkit.sh deploy/
RUN sh deploy/dependencies.sh release && sh deploy/dependencies.sh model && sh deploy/xgrammar.sh \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ccache \
    && case "$PRESET" in cuda) sh deploy/dependencies.sh cuda && sh deploy/cuda_toolkit.sh --libraries ;; esac
COPY . .
# Packages of another build may lie in the folder that the image is built from. What is compiled stays in a cache of
# the machine, for the next image.
RUN --mount=type=cache,target=/root/.cache/ccache rm -rf build/packages \
    && case "$PRESET" in cuda) set -- -DCMAKE_CUDA_COMPILER="$(sh deploy/cuda_toolkit.sh)" \
         ${CUDA_ARCHITECTURES:+-DTESSERA_CUDA_ARCHITECTURES="$CUDA_ARCHITECTURES"} ;; esac \
    && cmake --preset "$PRESET" -DTESSERA_MERGE_SOURCES=ON -DTESSERA_COMMIT="$COMMIT" "$@" \
    && cmake --build --preset "$PRESET" --target tessera-server tessera-load \
    && case "$PRESET" in cuda) cmake --build --preset "$PRESET" --target tessera_cuda_library ;; esac \
    && sh deploy/release.sh --image "build/$PRESET" build/packages

# The stages that PACKAGES chooses hold a package alone: buildah writes an image of the one that the last stage needs.
FROM scratch AS compiled
COPY --from=build /src/build/packages /packages

FROM scratch AS given
COPY build/packages /packages

FROM ${PACKAGES} AS packages

FROM ${BASE}
# The bill of materials has all packages of the image, and what is compiled into the programs.
RUN --mount=type=bind,from=packages,source=/packages,target=/packages \
    --mount=type=bind,source=deploy/package/sbom.sh,target=/sbom.sh \
    apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends /packages/*.deb mpich tini \
    && { dpkg-query -W -f 'deb ${Package} ${Version}\n'; grep -v ' linked$' /usr/share/doc/tessera/components; } \
       | sh /sbom.sh "$(dpkg-query -W -f '${Version}' tessera)" > /usr/share/doc/tessera/image.spdx.json \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
    && ln -s /usr/share/tessera /models \
    && useradd --system --uid 10001 --no-create-home tessera
USER 10001
EXPOSE 8080 50051
# Where the NVIDIA container toolkit is installed, it brings the driver's libraries.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
STOPSIGNAL SIGTERM
# For Docker; Kubernetes has probes of its own. Until the model is loaded /health says 503.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m CMD ["bash", "-c", \
  "exec 3<>/dev/tcp/127.0.0.1/8080 && printf 'GET /health HTTP/1.0\\r\\n\\r\\n' >&3 && head -n 1 <&3 | grep -q ' 200 '"]
# tini passes signals on, and reaps processes that mpirun leaves.
ENTRYPOINT ["tini", "--", "tessera-server"]
CMD ["--model", "/models/tessera-tiny", "--host", "0.0.0.0"]

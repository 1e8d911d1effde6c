# Two stages from one base: what builds does not ship.
#   docker build -t tessera . && docker run --rm -p 8080:8080 -p 50051:50051 tessera
# Over two ranks (each takes 4 MB of shared memory: above 14, give --shm-size more than its 64 MB):
#   docker run --rm -p 8080:8080 -p 50051:50051 --entrypoint mpirun tessera -n 2 \
#     tessera-server --model /models/tessera-tiny --host 0.0.0.0 --tensor-parallel 2
ARG BASE=debian:12-slim

FROM ${BASE} AS build
WORKDIR /src
COPY deploy/dependencies.sh deploy/xgrammar.sh deploy/
RUN sh deploy/dependencies.sh ranks && sh deploy/xgrammar.sh
COPY . .
RUN cmake --preset release -DTESSERA_MERGE_SOURCES=ON \
    && cmake --build --preset release --target tessera-server \
    && strip build/release/bin/tessera-server
# The packages that own the shared libraries the binary needs, whatever their versions are called.
RUN ldd build/release/bin/tessera-server | awk '$3 ~ "^/" {print $3}' | xargs -n1 basename \
    | xargs -I{} dpkg -S '*/{}' | cut -d: -f1 | sort -u > /runtime-packages

FROM ${BASE}
COPY --from=build /runtime-packages /tmp/
RUN apt-get update -qq \
    && xargs apt-get install -y -qq --no-install-recommends mpich < /tmp/runtime-packages \
    && rm -rf /tmp/runtime-packages /var/lib/apt/lists/* \
    && useradd --system --uid 10001 tessera
COPY --from=build /src/build/release/bin/tessera-server /usr/local/bin/
COPY models/checkpoints/tessera-tiny /models/tessera-tiny
USER 10001
EXPOSE 8080 50051
ENTRYPOINT ["tessera-server"]
CMD ["--model", "/models/tessera-tiny", "--host", "0.0.0.0"]

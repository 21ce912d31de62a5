# lowerd on Debian 13.
#
#   docker build -t lowerd .
#   docker run -p 50051:50051 -v lowerd:/var/lib/lowerd -v ./tls:/etc/lowerd/tls:ro lowerd \
#     --listen 0.0.0.0:50051 --tls-cert /etc/lowerd/tls/server.pem --tls-key /etc/lowerd/tls/server.key
FROM debian:trixie-slim AS build
COPY deploy/install-deps.sh /src/deploy/
RUN /src/deploy/install-deps.sh build
COPY . /src
RUN cmake -S /src -B /build -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=/usr \
      -DLOWERD_BUILD_TESTS=OFF -DLOWERD_BUILD_BENCHMARKS=OFF \
    && cmake --build /build \
    && DESTDIR=/install cmake --install /build --strip
# The Debian packages of the libraries that the programs link.
RUN find /install -type f -exec ldd {} + 2>/dev/null | awk '/=> \//{print $3}' | sort -u \
    | xargs -r realpath | xargs -r dpkg -S 2>/dev/null | cut -d: -f1 | sort -u > /runtime-packages

FROM debian:trixie-slim
RUN --mount=type=bind,from=build,source=/runtime-packages,target=/runtime-packages \
    apt-get update \
    && xargs -a /runtime-packages apt-get install -y --no-install-recommends \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 lowerd \
    && useradd --uid 10001 --gid lowerd --home-dir /var/lib/lowerd --create-home \
         --shell /usr/sbin/nologin lowerd
COPY --from=build /install/ /
# By number, so that Kubernetes sees that it is not root.
USER 10001:10001
VOLUME /var/lib/lowerd
EXPOSE 50051 9464
ENTRYPOINT ["/usr/bin/lowerd", "--data-dir", "/var/lib/lowerd"]
CMD ["--listen", "127.0.0.1:50051"]

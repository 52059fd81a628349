# The image of server and guest: one static file, and whom the server trusts when it speaks for a sandbox.
#
#   docker build -t sandbar:latest .                            builds the program first; needs BuildKit, or podman
#   docker build -t sandbar:latest --target prebuilt -f Dockerfile DIRECTORY    takes sandbar and ca-certificates.crt that lie there

FROM scratch AS base
USER 1000:1000
ENTRYPOINT ["/sandbar"]
CMD ["--help"]

# Before the build, which an engine without BuildKit would begin otherwise.
FROM base AS prebuilt
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY sandbar /sandbar

FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --profile dist --locked -p sandbar \
 && install -D -m 0755 "target/$(rustc --print host-tuple)/dist/sandbar" /out/sandbar

FROM base
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/sandbar /sandbar

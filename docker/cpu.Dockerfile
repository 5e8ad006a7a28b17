# sortie-train with Open MPI, for CPUs. From the root of the project:
#   docker build --file docker/cpu.Dockerfile --tag sortie-train:cpu .
# Without a registry, use scripts/build-image. To pin the exact base image: --build-arg BASE=debian:12.12-slim@sha256:...
ARG BASE=debian:12.12-slim

FROM ${BASE} AS build
WORKDIR /src
# A separate layer, so that a change of the sources does not repeat the installation.
COPY scripts/setup scripts/setup
RUN scripts/setup && rm -rf /var/lib/apt/lists/*
COPY . .
RUN cmake --preset release > /dev/null \
 && cmake --build --preset release --target sortie-train \
 && strip --strip-unneeded build/release/bin/sortie-train

FROM ${BASE}
RUN apt-get -qq update \
 && DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends \
      libdnnl2 libgomp1 libhwloc15 libopenmpi3 libpmix2 libsentencepiece0 libssl3 libxxhash0 openmpi-bin > /dev/null \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 1000 --user-group --create-home sortie
COPY --from=build /src/build/release/bin/sortie-train /usr/local/bin/
COPY LICENSE /usr/share/doc/sortie/
USER 1000:1000
WORKDIR /home/sortie
# isolated: a program that runs without a launcher is a single rank and needs no ssh.
ENV LANG=C.UTF-8 OMPI_MCA_plm=isolated
CMD ["sortie-train", "--help"]

# sortie-train with libsortie-cuda.so, for ranks that compute on GPUs. From the root of the project:
#   docker build --file docker/cpu.Dockerfile --tag sortie-train:cpu .
#   docker build --file docker/cuda.Dockerfile --tag sortie-train:cuda .
# Code for a single architecture compiles in a fraction of the time: --build-arg ARCHITECTURES=90.
# The host needs driver 580 or later; the NVIDIA container runtime mounts its libcuda.so.1 into the container.
ARG BASE=sortie-train:cpu
ARG BUILD=debian:12.12-slim

FROM ${BUILD} AS build
ARG ARCHITECTURES="80;86;89;90;100;120"
WORKDIR /src
# A separate layer, so that a change of the sources does not repeat the installation. CUDA's compiler and libraries are NVIDIA's
# packages from PyPI.
COPY scripts/setup scripts/setup
RUN scripts/setup --cuda && rm -rf /var/lib/apt/lists/*
COPY . .
RUN cmake --preset cuda -D SORTIE_TESTS=OFF -D "SORTIE_CUDA_ARCHITECTURES=${ARCHITECTURES}" > /dev/null \
 && cmake --build --preset cuda --target sortie-train sortie-cuda \
 && strip --strip-unneeded build/cuda/bin/sortie-train build/cuda/bin/libsortie-cuda.so \
 && mkdir -p /out/cuda \
 && cp -L /root/.cache/sortie/cuda/lib/libcublasLt.so.13 /root/.cache/sortie/cuda/lib/libnccl.so.2 /out/cuda/

FROM ${BASE}
USER root
# Both from the same build: the module refuses a program of another build.
COPY --from=build /src/build/cuda/bin/sortie-train /usr/local/bin/
COPY --from=build /src/build/cuda/bin/libsortie-cuda.so /usr/local/lib/sortie/
COPY --from=build /out/cuda/ /usr/local/cuda/lib64/
RUN echo /usr/local/cuda/lib64 > /etc/ld.so.conf.d/cuda.conf && ldconfig
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000:1000

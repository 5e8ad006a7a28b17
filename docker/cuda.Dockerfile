# The CPU image plus the CUDA runtime, cuBLAS and NCCL, for ranks that use GPUs. From the root of the project:
#   docker build --file docker/cpu.Dockerfile --tag sortie-train:cpu .
#   docker build --file docker/cuda.Dockerfile --tag sortie-train:cuda .
# sortie-train itself computes on CPUs; the libraries are for programs of yours that run beside it or in its place.
# The driver is the host's: the NVIDIA container runtime puts libcuda.so.1 into the container.
ARG BASE=sortie-train:cpu
ARG CUDA=nvidia/cuda:12.8.1-runtime-ubuntu24.04

FROM ${CUDA} AS cuda
# Only what a rank loads, and no stubs: the whole of the base is several times as large.
RUN mkdir -p /out/lib \
 && cp -a /usr/local/cuda/lib64/libcudart.so.* /usr/local/cuda/lib64/libnvrtc*.so.* /usr/local/cuda/lib64/libcublas*.so.* \
      /usr/lib/x86_64-linux-gnu/libnccl.so.* /out/lib/

FROM ${BASE}
USER root
COPY --from=cuda /out/lib/ /usr/local/cuda/lib64/
RUN echo /usr/local/cuda/lib64 > /etc/ld.so.conf.d/cuda.conf && ldconfig
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000:1000

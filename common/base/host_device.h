// Marks an inline function that GPU kernels call too. nvcc compiles it for the host and the device.
#pragma once

#ifdef __CUDACC__
#define SORTIE_HOST_DEVICE __host__ __device__
#else
#define SORTIE_HOST_DEVICE
#endif

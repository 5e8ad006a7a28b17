// Marks an inline function that kernels of a GPU call, too: there it is compiled a second time.
#pragma once

#ifdef __CUDACC__
#define SORTIE_HOST_DEVICE __host__ __device__
#else
#define SORTIE_HOST_DEVICE
#endif

// The row kernels for the instruction set "avx512"; flags in CMakeLists.txt.
#define SORTIE_ISA_NAMESPACE avx512
#include "trainer/ops/kernels/body.h"

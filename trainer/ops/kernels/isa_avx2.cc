// The row kernels for the instruction set "avx2"; flags in CMakeLists.txt.
#define SORTIE_ISA_NAMESPACE avx2
#include "trainer/ops/kernels/body.h"

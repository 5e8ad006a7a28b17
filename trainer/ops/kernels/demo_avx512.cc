// DeMo's kernels for the instruction set "avx512"; flags in CMakeLists.txt.
#define SORTIE_ISA_NAMESPACE avx512
#define SORTIE_DEMO_LANES 16
#include "trainer/ops/kernels/demo_body.h"

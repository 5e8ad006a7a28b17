// DeMo's kernels for the instruction set "avx2"; flags in CMakeLists.txt.
#define SORTIE_ISA_NAMESPACE avx2
#define SORTIE_DEMO_LANES 8
#include "trainer/ops/kernels/demo_body.h"

// DeMo's kernels for the instruction set "baseline"; flags in CMakeLists.txt.
#define SORTIE_ISA_NAMESPACE baseline
#define SORTIE_DEMO_LANES 4
#include "trainer/ops/kernels/demo_body.h"

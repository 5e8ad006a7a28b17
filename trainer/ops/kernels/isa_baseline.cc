// The row kernels for the instruction set "baseline"; flags in CMakeLists.txt.
#define SORTIE_ISA_NAMESPACE baseline
#include "trainer/ops/kernels/body.h"

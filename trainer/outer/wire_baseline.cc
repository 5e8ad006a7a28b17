// The kernels of the wire formats for the instruction set "baseline"; flags in CMakeLists.txt.
#define SORTIE_ISA_NAMESPACE baseline
#include "trainer/outer/wire_body.h"

// The kernels of the wire formats for the instruction set "avx512"; flags in CMakeLists.txt.
#define SORTIE_ISA_NAMESPACE avx512
#include "trainer/outer/wire_body.h"

// The kernels of the wire formats for the instruction set "avx2"; flags in CMakeLists.txt.
#define SORTIE_ISA_NAMESPACE avx2
#include "trainer/outer/wire_body.h"

# The op tests run on GPUs as well, emulated and real ones, except for the cases that are listed here, each with its reason. A new
# case needs no entry.

# sortie_host_ops(REASON PATTERN...) - leaves out cases that use no tested device. Patterns are those of doctest, for names.
function(sortie_host_ops reason)
  if(reason STREQUAL "" OR NOT ARGN)
    message(FATAL_ERROR "sortie_host_ops: a reason and patterns of names are needed, not \"${reason}\" and \"${ARGN}\"")
  endif()
  list(APPEND SORTIE_HOST_OPS ${ARGN})
  set(SORTIE_HOST_OPS "${SORTIE_HOST_OPS}" PARENT_SCOPE)
endfunction()
set(SORTIE_HOST_OPS "")
sortie_host_ops("tests the reference, which the host computes"
  "the * reference's gradients are its slopes"
  "the * references' gradients are their slopes"
  "the RoPE reference turned back is its gradient")
sortie_host_ops("tests kernels or products of the CPU"
  "ONEDNN_MAX_CPU_ISA limits*"
  "the exponential is within 2 ulp*"
  "long products poll more than once*"
  "products are as many for a long sequence*"
  "a product is good for as long as it is held*"
  "DeMo: a block's transform*"
  "DeMo: a block is restored*"
  "DeMo: the largest coefficients are chosen*"
  "DeMo: a message has*"
  "DeMo: every index*"
  "DeMo: a coefficient is told*"
  "DeMo: sides are cut*")
sortie_host_ops("makes its own device: guarded, meta or the CPU with late work"
  "outside of ops the host can not touch guarded memory"
  "memory that nobody has written is NaN*"
  "an open arena opens no other"
  "a meta tensor has an address of its own*"
  "products count 2 M N K each"
  "late work waits for the events*"
  "an event that is asked for gets there*"
  "work that is late has its operands*")
sortie_host_ops("tests a formula on the host; on a GPU the gate of updates uses it"
  "a value far above those before it stands out*"
  "one outlier hides no other*"
  "values that are all alike do not make*"
  "limit 0 rejects nothing*")
sortie_host_ops("computes frequencies on the host"
  "YaRN leaves fast pairs alone*")

string(REPLACE ";" "," host_ops "${SORTIE_HOST_OPS}")
sortie_on_emulated_gpu(trainer/ops "" "--test-case-exclude=${host_ops}")
# No case that is left out by mistake: with this name of a device, a case that asks for the tested device fails.
add_test(NAME "trainer/ops: cases that do not run on GPUs use no tested device" COMMAND test_trainer_ops "--test-case=${host_ops}")
set_tests_properties("trainer/ops: cases that do not run on GPUs use no tested device" PROPERTIES
                     ENVIRONMENT SORTIE_TEST_DEVICE=none LABELS trainer/ops TIMEOUT 300)

# The emulated GPU has compute capability 9.0 and 227 KiB of shared memory per block if nothing else is asked for. This one tests the
# attention kernels of all other GPUs, and the kernels that use much shared memory where a block has 99 KiB.
set(emulated_86 "trainer/ops: attention, norms and experts on an emulated GPU of compute capability 8.6")
add_test(NAME "${emulated_86}" COMMAND test_trainer_ops
         "--test-case=*attention*,scores far apart*,a NaN in q*,many tiles give*,keys that no query sees*,norm*,a mixture*,rows are sorted by expert*,loss and gradients equal*")
set_tests_properties("${emulated_86}" PROPERTIES
  ENVIRONMENT "SORTIE_TEST_DEVICE=cuda;SORTIE_CUDA_MODULE=$<TARGET_FILE:sortie-cuda-emulated>;SORTIE_EMULATED_GPU=sm_86"
  LABELS trainer/ops TIMEOUT 300 COST ${SORTIE_LONG_SUITE})

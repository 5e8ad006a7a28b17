# Benchmarks of the trainer's ops; the floor is a library so that the step's bench prints it, too.
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_library(SORTIE_DNNL dnnl REQUIRED)
add_library(sortie_step_floor STATIC "${CMAKE_CURRENT_LIST_DIR}/step_floor_cpu.cc")
target_link_libraries(sortie_step_floor PUBLIC sortie_tensor PRIVATE OpenMP::OpenMP_CXX ${SORTIE_DNNL})
add_executable(bench_step_floor "${CMAKE_CURRENT_LIST_DIR}/step_floor.cc")
target_link_libraries(bench_step_floor PRIVATE sortie_step_floor sortie_ops)
add_executable(bench_ops "${CMAKE_CURRENT_LIST_DIR}/ops_cpu.cc")
target_link_libraries(bench_ops PRIVATE sortie_step_floor sortie_ops)

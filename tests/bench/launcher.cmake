# The cost of a supervisor per host. The smoke test checks that the benchmark works, not how fast it is.
add_executable(bench_simulated_hosts "${CMAKE_CURRENT_LIST_DIR}/simulated_hosts.cc")
target_link_libraries(bench_simulated_hosts PRIVATE sortie_launcher)
add_test(NAME "bench: 40 simulated hosts" COMMAND bench_simulated_hosts --hold 0.5 40)
set_tests_properties("bench: 40 simulated hosts" PROPERTIES LABELS launcher TIMEOUT 60)

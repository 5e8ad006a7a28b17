# Checkpoints and token files, compared with plain reads and writes.
add_executable(bench_checkpoint_io "${CMAKE_CURRENT_LIST_DIR}/checkpoint_io.cc")
target_link_libraries(bench_checkpoint_io PRIVATE sortie_checkpoint)
add_executable(bench_data_io "${CMAKE_CURRENT_LIST_DIR}/data_io.cc")
target_link_libraries(bench_data_io PRIVATE sortie_data)
# Links between sites on this machine's loopback device.
add_executable(bench_outer_links "${CMAKE_CURRENT_LIST_DIR}/outer_links.cc")
target_link_libraries(bench_outer_links PRIVATE sortie_site_links)

# Every third-party library, found once; folders link the ones they adapt.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(Boost 1.81 EXACT REQUIRED)  # headers: Asio, Process v2, CRC
find_package(PkgConfig REQUIRED)
pkg_check_modules(libssh REQUIRED IMPORTED_TARGET libssh)
pkg_check_modules(libcrypto REQUIRED IMPORTED_TARGET libcrypto)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(sentencepiece REQUIRED IMPORTED_TARGET sentencepiece)
pkg_check_modules(zlib REQUIRED IMPORTED_TARGET zlib)
find_package(nlohmann_json REQUIRED)
find_package(doctest REQUIRED)
find_package(CLI11 REQUIRED)

# Asio's separate compilation: header-only, every file that uses a socket would compile the reactor again.
add_library(sortie_asio STATIC "${CMAKE_SOURCE_DIR}/common/asio/file_thread.cc" "${CMAKE_SOURCE_DIR}/common/asio/instances.cc"
            "${CMAKE_SOURCE_DIR}/common/asio/tasks.cc")
sortie_hot(sortie_asio)
target_link_libraries(sortie_asio PUBLIC Boost::headers Threads::Threads PRIVATE sortie_flags)
target_compile_definitions(sortie_asio PUBLIC BOOST_ASIO_NO_DEPRECATED BOOST_ASIO_SEPARATE_COMPILATION)
if(SORTIE_SANITIZE STREQUAL "thread")
  # ThreadSanitizer does not support fences, and g++ rejects them with it. Asio's mutex also orders the memory accesses of
  # handlers on different threads.
  target_compile_definitions(sortie_asio PUBLIC BOOST_ASIO_DISABLE_FENCED_BLOCK)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 reports this for Asio's coroutine frames when it optimises with sanitizers.
  target_compile_options(sortie_asio PUBLIC -Wno-mismatched-new-delete)
endif()

# fmt compiled once: the runner is linked fully statically and Debian ships no libfmt.a, and header-only
# fmt makes the whole build three times longer.
add_library(sortie_fmt STATIC "${CMAKE_SOURCE_DIR}/common/fmt/instances.cc")
target_include_directories(sortie_fmt SYSTEM PUBLIC
  "$<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>")

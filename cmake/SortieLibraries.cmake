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
find_package(nlohmann_json REQUIRED)
find_package(doctest REQUIRED)
find_package(CLI11 REQUIRED)

# Asio and Process v2 in header-only form; one thread owns all state, so no thread support is needed
# inside Asio except where a pool is used explicitly.
add_library(sortie_asio INTERFACE)
target_link_libraries(sortie_asio INTERFACE Boost::headers Threads::Threads)
target_compile_definitions(sortie_asio INTERFACE BOOST_ASIO_NO_DEPRECATED)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 says so of Asio's coroutine frames when it optimises with the sanitizers on.
  target_compile_options(sortie_asio INTERFACE -Wno-mismatched-new-delete)
endif()

# fmt stays header-only: the runner is linked fully statically and Debian ships no libfmt.a.
add_library(sortie_fmt INTERFACE)
if(SORTIE_FUZZ)  # no runner there, and instrumenting fmt in every file would be most of the build
  target_link_libraries(sortie_fmt INTERFACE fmt::fmt)
else()
  target_link_libraries(sortie_fmt INTERFACE fmt::fmt-header-only)
endif()

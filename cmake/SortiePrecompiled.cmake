# Precompiles the headers that most files use. A file still includes everything that it needs: the dev preset compiles without
# precompiled headers, and so finds missing includes.
option(SORTIE_PCH "Precompile the standard library's, Asio's and doctest's headers" ON)

set(SORTIE_PCH_standard <algorithm> <array> <chrono> <expected> <filesystem> <functional> <map> <memory> <optional> <span>
                        <string> <string_view> <unordered_map> <variant> <vector> <fmt/format.h>)
set(SORTIE_PCH_asio ${SORTIE_PCH_standard}
  <boost/asio/any_io_executor.hpp> <boost/asio/as_tuple.hpp> <boost/asio/awaitable.hpp> <boost/asio/co_spawn.hpp>
  <boost/asio/detached.hpp> <boost/asio/io_context.hpp> <boost/asio/post.hpp> <boost/asio/posix/stream_descriptor.hpp>
  <boost/asio/local/stream_protocol.hpp> <boost/asio/read.hpp> <boost/asio/steady_timer.hpp>
  <boost/asio/use_awaitable.hpp> <boost/asio/write.hpp>)
set(SORTIE_PCH_tests ${SORTIE_PCH_standard} <doctest/doctest.h>)
set(SORTIE_PCH_asio_tests ${SORTIE_PCH_asio} <doctest/doctest.h>)

# sortie_precompile(TARGET STACK) - compiles TARGET with the precompiled headers of STACK: standard, asio, tests, asio_tests, or
# none for a target with different code generation flags. Targets with asio_tests are compiled without optimization.
function(sortie_precompile target stack)
  if(stack STREQUAL "asio_tests")
    sortie_unoptimized(${target})
  endif()
  if(NOT SORTIE_PCH OR stack STREQUAL "none")
    return()
  endif()
  set(owner sortie_pch_${stack})
  if(NOT TARGET ${owner})
    file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/pch/${stack}.cc" CONTENT "")
    add_library(${owner} OBJECT "${CMAKE_BINARY_DIR}/pch/${stack}.cc")
    target_link_libraries(${owner} PRIVATE sortie_flags sortie_fmt)
    if(NOT stack MATCHES tests)
      sortie_hot(${owner})  # g++ 12 crashes if code at -O2 uses headers precompiled at -O1; the reverse works
    elseif(stack STREQUAL "asio_tests")
      sortie_unoptimized(${owner})
    endif()
    if(stack MATCHES asio)
      target_link_libraries(${owner} PRIVATE sortie_asio)
    endif()
    if(stack MATCHES tests)
      target_link_libraries(${owner} PRIVATE sortie_test_main)
      set_target_properties(${owner} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
      target_compile_options(${owner} PRIVATE -fPIE)  # its users are programs
    endif()
    target_precompile_headers(${owner} PRIVATE ${SORTIE_PCH_${stack}})
  endif()
  set_target_properties(${target} PROPERTIES PRECOMPILE_HEADERS_REUSE_FROM ${owner})
  add_dependencies(${target} ${owner})
endfunction()

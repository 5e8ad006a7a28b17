# Language level, warnings and flags shared by every target of the project.
set(CMAKE_CXX_STANDARD 23)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

# Most of the code waits for other processes: -O2 would not make it faster, but its compilation a third longer. Targets that
# compute use sortie_hot().
set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG")

# sortie_hot(TARGET [LEVEL]) - compiles TARGET, whose speed matters, with -O2 (or LEVEL) in release builds.
function(sortie_hot target)
  set(level -O2)
  if(ARGC GREATER 1)
    set(level "${ARGV1}")
  endif()
  target_compile_options(${target} PRIVATE "$<$<CONFIG:Release>:${level}>")
endfunction()

# sortie_unoptimized(TARGET) - compiles TARGET without optimization in release builds: tests of code that waits, where -O1 is a
# third of their compile time.
function(sortie_unoptimized target)
  target_compile_options(${target} PRIVATE "$<$<CONFIG:Release>:-O0>")
endfunction()

find_program(SORTIE_CCACHE ccache)
if(SORTIE_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER "${SORTIE_CCACHE}")
  # ccache caches compilations with precompiled headers only with these sloppiness settings.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND};-E;env;CCACHE_SLOPPINESS=pch_defines,time_macros;${SORTIE_CCACHE}")
endif()
find_program(SORTIE_MOLD mold)
if(SORTIE_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

add_library(sortie_flags INTERFACE)
target_include_directories(sortie_flags INTERFACE "${CMAKE_SOURCE_DIR}")
target_compile_options(sortie_flags INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion
                                              -Wunused-result -fno-math-errno)
if(SORTIE_WERROR)
  target_compile_options(sortie_flags INTERFACE -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 reports these inside libstdc++ and Asio headers for correct code.
  target_compile_options(sortie_flags INTERFACE -Wno-maybe-uninitialized -Wno-restrict -Wno-dangling-pointer
                                                -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
elseif(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # clang 16 needs this to accept libstdc++ 12's std::expected.
  target_compile_options(sortie_flags INTERFACE -Wno-builtin-macro-redefined -U__cpp_concepts -D__cpp_concepts=202002L)
endif()
# sortie_library(NAME SOURCES... [PRECOMPILED stack]) - adds a static library with the project's flags. `stack` is that of
# sortie_precompile(), by default standard.
function(sortie_library name)
  cmake_parse_arguments(arg "" "PRECOMPILED" "" ${ARGN})
  add_library(${name} STATIC ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PUBLIC sortie_flags)
  if(NOT arg_PRECOMPILED)
    set(arg_PRECOMPILED standard)
  endif()
  sortie_precompile(${name} ${arg_PRECOMPILED})
  set_property(GLOBAL APPEND PROPERTY SORTIE_UNITY_TARGETS ${name})
endfunction()

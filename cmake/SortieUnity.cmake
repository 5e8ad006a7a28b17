# Unity builds: the sources of a target are compiled together, so that shared headers are parsed, and shared templates
# instantiated, only once. File-local names must therefore differ within a target. The dev preset and scripts/lint compile file
# by file.
option(SORTIE_UNITY "Compile the sources of a target together" OFF)
# 192 KiB are about 4,500 lines. Smaller groups take more time in total; with larger ones, machines with many cores wait for
# the last group.
set(SORTIE_UNITY_KIB 192 CACHE STRING "How many KiB of sources are compiled together at most")

# sortie_unity() - groups the sources of each target in the global property SORTIE_UNITY_TARGETS, in the order of the target's
# SOURCES. Call it when all sources are known. CMake excludes sources that have their own options or definitions.
function(sortie_unity)
  if(NOT SORTIE_UNITY)
    return()
  endif()
  math(EXPR most "${SORTIE_UNITY_KIB} * 1024")
  get_property(targets GLOBAL PROPERTY SORTIE_UNITY_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(sources ${target} SOURCES)
    get_target_property(base ${target} SOURCE_DIR)
    set(paths "")
    set(sizes "")
    set(bytes 0)
    foreach(source IN LISTS sources)
      if(NOT source MATCHES "\\.cc$")
        continue()
      endif()
      cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${base}" NORMALIZE)
      file(SIZE "${source}" size)
      math(EXPR bytes "${bytes} + ${size}")
      list(APPEND paths "${source}")
      list(APPEND sizes ${size})
    endforeach()
    # Groups have nearly the same size: sources slightly above the limit make two halves, not a full group and a small rest.
    math(EXPR groups "(${bytes} + ${most} - 1) / ${most}")
    set(before 0)
    foreach(source size IN ZIP_LISTS paths sizes)
      math(EXPR group "${before} * ${groups} / ${bytes}")
      set_source_files_properties("${source}" TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP "${group}")
      math(EXPR before "${before} + ${size}")
    endforeach()
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # A type with a member of a file-local type is allowed in a .cc file, but g++ treats an included .cc file as a header.
      target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
    endif()
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  endforeach()
endfunction()

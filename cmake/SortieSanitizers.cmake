# AddressSanitizer with UndefinedBehaviorSanitizer, or ThreadSanitizer, in every target that links sortie_flags.
if(NOT SORTIE_SANITIZE)
  return()
endif()
set(findings "${CMAKE_BINARY_DIR}/findings")
add_library(sortie_sanitizer_options OBJECT "${CMAKE_SOURCE_DIR}/tests/sanitizers/options.cc")
target_compile_definitions(sortie_sanitizer_options PRIVATE
  SORTIE_FINDINGS="${findings}" SORTIE_SUPPRESSIONS="${CMAKE_SOURCE_DIR}/tests/sanitizers")
if(SORTIE_SANITIZE STREQUAL "address")
  set(kinds address,undefined)
  target_compile_options(sortie_flags INTERFACE -fno-sanitize-recover=undefined)
elseif(SORTIE_SANITIZE STREQUAL "thread")
  set(kinds thread)
  target_compile_definitions(sortie_sanitizer_options PRIVATE SORTIE_THREADS)
  target_sources(sortie_sanitizer_options PRIVATE "${CMAKE_SOURCE_DIR}/tests/sanitizers/openmp.cc")
else()
  message(FATAL_ERROR "SORTIE_SANITIZE must be address, thread or empty, not '${SORTIE_SANITIZE}'")
endif()
target_compile_options(sortie_flags INTERFACE -fsanitize=${kinds} -fno-omit-frame-pointer)
target_link_options(sortie_flags INTERFACE -fsanitize=${kinds})

# Linked into every program as objects: the linker would prefer the sanitizers' own empty functions to those of an archive.
set(program "$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>")
target_link_options(sortie_flags INTERFACE "$<${program}:$<TARGET_OBJECTS:sortie_sanitizer_options>>")
set_property(TARGET sortie_flags APPEND PROPERTY INTERFACE_LINK_DEPENDS "$<${program}:$<TARGET_OBJECTS:sortie_sanitizer_options>>")

# Processes of any user write their findings there.
file(MAKE_DIRECTORY "${findings}")
file(CHMOD "${findings}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_WRITE GROUP_EXECUTE
                                     WORLD_READ WORLD_WRITE WORLD_EXECUTE)

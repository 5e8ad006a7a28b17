# Fuzzing as part of the release suite, label fuzz: a fixture builds the fuzz preset beside this build, then each
# harness runs for its time. Other presets leave it out; tests/fuzz/run runs a harness by hand.
if(NOT CMAKE_BUILD_TYPE STREQUAL "Release")
  return()
endif()
set(run "${CMAKE_CURRENT_LIST_DIR}/run")
add_test(NAME "fuzz: build" COMMAND "${run}" build)
set_tests_properties("fuzz: build" PROPERTIES FIXTURES_SETUP fuzz_build LABELS fuzz TIMEOUT 2400 COST 2000
                     ENVIRONMENT CMAKE_BUILD_PARALLEL_LEVEL=1)  # other tests run meanwhile

# sortie_fuzz_test(HARNESS SECONDS)
function(sortie_fuzz_test harness seconds)
  set(test "fuzz: ${harness} for ${seconds} s")
  add_test(NAME "${test}" COMMAND "${run}" "${harness}" "${seconds}")
  math(EXPR timeout "2 * ${seconds} + 300")
  set_tests_properties("${test}" PROPERTIES FIXTURES_REQUIRED fuzz_build LABELS fuzz TIMEOUT ${timeout}
                       COST ${seconds})
endfunction()

# What is read from the network or from everyone's config is tried longer; scripts/ci_long tries each for minutes.
# An input of config takes 150 ms here, of the others tens of milliseconds.
set(seconds_config 90)
set(seconds_hostlist 20)
set(seconds_frame 20)
set(seconds_token_index 10)
file(GLOB harnesses CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/*_fuzz.cc")
foreach(source IN LISTS harnesses)
  cmake_path(GET source STEM name)
  string(REGEX REPLACE "_fuzz$" "" name "${name}")
  if(DEFINED seconds_${name})
    sortie_fuzz_test(${name} ${seconds_${name}})
  else()
    sortie_fuzz_test(${name} 6)
  endif()
endforeach()

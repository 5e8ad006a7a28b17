# Read by ctest after the tests of the suites. Every case, on guarded memory above all, takes as long as it takes: who asks for
# that bounds the whole (an hour for a piece of scripts/ci_long).
if(NOT "$ENV{SORTIE_EVERY_CASE}" STREQUAL "")
  get_cmake_property(variables VARIABLES)
  foreach(variable IN LISTS variables)
    if(variable MATCHES "^test_.*_TESTS$")
      foreach(test IN LISTS ${variable})
        set_tests_properties("${test}" PROPERTIES TIMEOUT 3600)
      endforeach()
    endif()
  endforeach()
endif()

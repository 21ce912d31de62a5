# How every target of this project is made.

# Warnings and sanitizers, for our own code only.
add_library(lowerd_build_options INTERFACE)
add_library(lowerd::build_options ALIAS lowerd_build_options)
target_compile_options(
  lowerd_build_options
  INTERFACE -Wall
            -Wextra
            -Wpedantic
            -Wshadow
            -Wnon-virtual-dtor
            -Wno-missing-field-initializers
            $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>)
target_include_directories(lowerd_build_options INTERFACE ${PROJECT_SOURCE_DIR})
if(LOWERD_SANITIZE)
  add_compile_options(-fsanitize=${LOWERD_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${LOWERD_SANITIZE})
endif()
if(LOWERD_SANITIZE MATCHES thread)
  target_sources(
    lowerd_build_options
    INTERFACE
      $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:${PROJECT_SOURCE_DIR}/cmake/tsan_absl_mutex.cc>)
endif()
if(LOWERD_BUILD_FUZZERS)
  # So that the fuzzers see the branches of the libraries.
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# lowerd_library(NAME SOURCES a.cc ... [PUBLIC lib ...] [PRIVATE lib ...]) makes static library
# lowerd_NAME with alias lowerd::NAME.
function(lowerd_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(lowerd_${name} STATIC ${arg_SOURCES})
  add_library(lowerd::${name} ALIAS lowerd_${name})
  target_link_libraries(lowerd_${name} PUBLIC ${arg_PUBLIC} PRIVATE lowerd::build_options ${arg_PRIVATE})
  target_include_directories(lowerd_${name} PUBLIC ${PROJECT_SOURCE_DIR})
endfunction()

# lowerd_test(NAME SOURCES a_test.cc ... [LIBS lib ...] [TIMEOUT seconds]) makes a GoogleTest
# program and registers each of its tests with CTest.
function(lowerd_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;LIBS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE lowerd::build_options ${arg_LIBS} GTest::gmock GTest::gtest_main)
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT ${arg_TIMEOUT})
endfunction()

# lowerd_benchmark(NAME SOURCES a_bench.cc ... [LIBS lib ...])
function(lowerd_benchmark name)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE lowerd::build_options ${arg_LIBS} benchmark::benchmark_main)
endfunction()

# Tests of the part that has no libtorch in it.
find_package(ZLIB REQUIRED)
lowerd_test(
  archive_test
  SOURCES
  archive_artifact_test.cc
  archive_mutation_test.cc
  archive_open_test.cc
  archive_pickle_test.cc
  zip_writer.cc
  LIBS
  lowerd::archive
  ZLIB::ZLIB)
target_compile_definitions(archive_test PRIVATE LOWERD_TESTDATA="${CMAKE_CURRENT_SOURCE_DIR}/testdata")

# Reads archives without libtorch: what looks at hostile files first, and the judge of finished artifacts.
find_package(ZLIB REQUIRED)
lowerd_library(
  archive
  SOURCES
  artifact_verifier.cc
  flatbuffer_artifact.cc
  model_archive.cc
  not_torchscript.cc
  pickle_machine.cc
  zip_directory.cc
  PUBLIC
  lowerd::base
  lowerd::proto
  PRIVATE
  ZLIB::ZLIB)

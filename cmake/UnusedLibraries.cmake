# Debian's libtorch 1.13 lists the libraries of OpenCV and FFmpeg as needed and uses no symbol of
# them. With what these need in turn they are 230 of the 312 libraries of a worker, most of the time
# that it takes to start, and 1200 of the 1700 mappings that each fork copies and each job's end
# takes down.
#
# lowerd_make_unused_libraries(DIR) fills DIR with empty libraries of these names; a worker that has
# DIR in LD_LIBRARY_PATH (src/pool/worker_process.cc) loads them instead. The dynamic linker itself
# is asked whether anything misses a symbol then, in libtorch or in what it needs; if so, or with a
# libtorch that has no such dependencies, DIR stays empty and workers load what is listed.
function(lowerd_make_unused_libraries dir)
  file(REMOVE_RECURSE "${dir}")
  file(MAKE_DIRECTORY "${dir}")
  get_target_property(torch torch_cpu IMPORTED_LOCATION_RELEASE)
  if(NOT torch)
    get_target_property(torch torch_cpu LOCATION)
  endif()
  execute_process(
    COMMAND "${CMAKE_READELF}" --dynamic --wide "${torch}"
    OUTPUT_VARIABLE dynamic
    ERROR_QUIET)
  string(REGEX MATCHALL "\\[lib(opencv_|avcodec|avformat|avutil|swscale|swresample)[^]]+\\]" names
               "${dynamic}")
  if(NOT names)
    return()
  endif()
  foreach(name IN LISTS names)
    string(REGEX REPLACE "^\\[(.*)\\]$" "\\1" name "${name}")
    execute_process(
      COMMAND "${CMAKE_CXX_COMPILER}" -shared -nostdlib "-Wl,-soname,${name}" -o "${dir}/${name}" -x
              c++ /dev/null
      RESULT_VARIABLE failed)
    if(failed)
      message(FATAL_ERROR "An empty library ${name} cannot be linked")
    endif()
  endforeach()
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -E env "LD_LIBRARY_PATH=${dir}" ldd -r "${torch}"
    OUTPUT_VARIABLE relocated
    ERROR_VARIABLE relocated)
  if(relocated MATCHES "undefined symbol|version information|not found" OR NOT relocated MATCHES
                                                                           "libc10")
    message(STATUS "${torch} uses libraries that it was not known to use; workers load all of them")
    file(REMOVE_RECURSE "${dir}")
    file(MAKE_DIRECTORY "${dir}")
    return()
  endif()
  list(LENGTH names count)
  message(STATUS "Workers leave out ${count} libraries that libtorch lists and does not use")
endfunction()

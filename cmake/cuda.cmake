# libtutti_cuda.so (src/cuda): kernels by nvcc, the rest by the compiler of everything else. Built where TUTTI_CUDA names
# the folder that tools/cuda_setup makes; needs no GPU. CMake's own CUDA language wants a GPU host's toolkit to link test
# programs with, so nvcc is called as a command.
set(TUTTI_CUDA "" CACHE PATH "folder of tools/cuda_setup; empty: no CUDA library is built")
set(TUTTI_CUDA_ARCHITECTURES "80;90a;100" CACHE STRING "what every kernel is compiled for")
if(NOT TUTTI_CUDA OR TUTTI_SANITIZE)
  return()
endif()
set(cuda_root ${TUTTI_CUDA}/nvidia/cu13)
set(cuda_include ${cuda_root}/include ${TUTTI_CUDA}/nvidia/cudnn/include ${TUTTI_CUDA}/nvidia/nccl/include ${TUTTI_CUDA}/include)
set(codes "")
foreach(arch ${TUTTI_CUDA_ARCHITECTURES})
  list(APPEND codes -gencode arch=compute_${arch},code=sm_${arch})
endforeach()
set(nvcc ${TUTTI_CCACHE} ${cuda_root}/bin/nvcc)

file(GLOB host_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/cuda/*.cc ${CMAKE_SOURCE_DIR}/src/cuda/*/*.cc)
file(GLOB kernel_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/cuda/*.cu ${CMAKE_SOURCE_DIR}/src/cuda/*/*.cu)
set(objects "")
foreach(file ${kernel_files})
  get_filename_component(stem ${file} NAME_WE)
  set(object ${CMAKE_BINARY_DIR}/cuda/${stem}.o)
  # One meaning for every expression, as on the host: no contraction, FMA only where written.
  add_custom_command(OUTPUT ${object} DEPFILE ${object}.d
    COMMAND ${nvcc} -ccbin g++ -std=c++20 -O3 --fmad=false -Xcompiler -fPIC,-ffp-contract=off ${codes} -I${CMAKE_SOURCE_DIR}/src
            -MD -MF ${object}.d -c ${file} -o ${object}
    DEPENDS ${file} VERBATIM COMMENT "nvcc ${stem}.cu")
  list(APPEND objects ${object})
endforeach()
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/cuda ${CMAKE_BINARY_DIR}/lib)

add_library(tutti_cuda SHARED ${host_files} ${objects})
set_target_properties(tutti_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib LINKER_LANGUAGE CXX)
set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
target_include_directories(tutti_cuda SYSTEM PRIVATE ${cuda_include})
target_include_directories(tutti_cuda PRIVATE ${CMAKE_SOURCE_DIR}/src)
target_link_libraries(tutti_cuda PRIVATE ${TUTTI_FOLDERS} ${cuda_root}/lib/libcudart.so.13 ${TUTTI_TORCH}/torch/lib/libc10_cuda.so
                      ${TUTTI_TORCH}/torch/lib/libtorch_cuda.so)
# The libraries behind LibTorch's CUDA libraries are on GPU hosts alone.
target_link_options(tutti_cuda PRIVATE -Wl,--allow-shlib-undefined,--no-as-needed,-Bsymbolic,--exclude-libs,ALL)
tutti_pch(tutti_cuda ON)

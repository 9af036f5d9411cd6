# LibTorch from the PyPI wheel, as imported targets of our own: the wheel's own CMake files want a CUDA toolkit.
# TUTTI_TORCH is the folder that holds torch/ and nvidia/ (site-packages, or where pip --target put them).
set(TUTTI_TORCH "${CMAKE_SOURCE_DIR}/.deps/libtorch" CACHE PATH "folder that holds torch/ and nvidia/")
if(NOT EXISTS ${TUTTI_TORCH}/torch/lib/libtorch_cpu.so)
  message(FATAL_ERROR "no LibTorch under ${TUTTI_TORCH}; run ./tutti setup")
endif()
add_library(tutti_torch INTERFACE)
add_library(Tutti::torch ALIAS tutti_torch)
set_target_properties(tutti_torch PROPERTIES EXPORT_NAME torch)
target_compile_definitions(tutti_torch INTERFACE AT_PER_OPERATOR_HEADERS)
# The wheel brings headers of another fmt than the one we link with: ours must come first.
get_target_property(fmt_include fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/include_first)
file(CREATE_LINK ${fmt_include}/fmt ${CMAKE_BINARY_DIR}/include_first/fmt SYMBOLIC)
set(torch_include ${CMAKE_BINARY_DIR}/include_first ${TUTTI_TORCH}/torch/include ${TUTTI_TORCH}/torch/include/torch/csrc/api/include)
set(torch_lib ${TUTTI_TORCH}/torch/lib)
set(nvidia_lib ${TUTTI_TORCH}/nvidia/cu13/lib)
target_include_directories(tutti_torch SYSTEM INTERFACE "$<BUILD_INTERFACE:${torch_include}>")
target_link_options(tutti_torch INTERFACE
  "$<BUILD_INTERFACE:-L${torch_lib};-Wl,-rpath,${torch_lib};-Wl,-rpath,${nvidia_lib};-Wl,-rpath-link,${nvidia_lib}>")
target_link_libraries(tutti_torch INTERFACE torch_cpu c10)

# Embeds jobs/*.toml into tutti_config: the built-in jobs (config/builtin.h). A changed or new file configures again.
file(GLOB job_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/jobs/*.toml)
list(SORT job_files)
set(job_rows "")
foreach(file ${job_files})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  get_filename_component(name ${file} NAME_WE)
  file(READ ${file} text)
  string(APPEND job_rows "    {\"${name}\", R\"__job__(${text})__job__\"},\n")
endforeach()
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/embedded_jobs.cc @ONLY CONTENT
"// Made from jobs/*.toml by cmake/embed_jobs.cmake.
#include \"config/builtin.h\"

namespace tutti {

std::span<const BuiltinFile> builtin_files() {
  static constexpr BuiltinFile kFiles[] = {
@job_rows@  };
  return kFiles;
}

}  // namespace tutti
")
target_sources(tutti_config PRIVATE ${CMAKE_BINARY_DIR}/embedded_jobs.cc)

# Makes the source that tells `tutti --version` of which commit the command is. It is made again when HEAD has moved, and only the command is
# linked with it: a commit compiles one small file. Without git, or without a repository, the commit is unknown.
# Included, it adds the source to the command; run as a script (cmake -P, with SOURCE, OUT and VERSION) it makes it.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(commit_source ${CMAKE_BINARY_DIR}/commit.cc)
  add_custom_command(OUTPUT ${commit_source} DEPFILE ${commit_source}.d DEPENDS ${CMAKE_CURRENT_LIST_FILE}
    COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_SOURCE_DIR} -DOUT=${commit_source} -DVERSION=${PROJECT_VERSION} -P ${CMAKE_CURRENT_LIST_FILE}
    VERBATIM COMMENT "commit.cc")
  target_sources(tutti PRIVATE ${commit_source})
  target_sources(tutti-torch PRIVATE ${commit_source})
  set_source_files_properties(${commit_source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  return()
endif()

# A repository around the folder of an unpacked archive says nothing about it.
set(commit unknown)
set(log "")
if(EXISTS ${SOURCE}/.git)
  execute_process(COMMAND git -C ${SOURCE} rev-parse --short HEAD OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed ERROR_QUIET)
  if(NOT failed)
    set(commit ${head})
    # Git adds a line to it whenever HEAD moves.
    execute_process(COMMAND git -C ${SOURCE} rev-parse --path-format=absolute --git-path logs/HEAD OUTPUT_VARIABLE log OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
endif()
file(WRITE ${OUT} "namespace tutti {\nextern const char* const kBuild;\nconst char* const kBuild = \"${VERSION} (commit ${commit})\";\n}  // namespace tutti\n")
file(WRITE ${OUT}.d "${OUT}: ${log}\n")

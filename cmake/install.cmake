# `cmake --install build --prefix P` makes P a package that find_package(Tutti) finds: the command, the libraries, the headers.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
add_library(tutti_all INTERFACE)
set_target_properties(tutti_all PROPERTIES EXPORT_NAME Tutti)
target_link_libraries(tutti_all INTERFACE ${TUTTI_FOLDERS})
target_include_directories(tutti_all INTERFACE "$<INSTALL_INTERFACE:include>")
install(TARGETS ${TUTTI_FOLDERS} tutti_torch tutti_all tutti tutti-torch EXPORT TuttiTargets)
install(EXPORT TuttiTargets NAMESPACE Tutti:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Tutti)
install(DIRECTORY src/ DESTINATION include/tutti FILES_MATCHING PATTERN "*.h")
install(DIRECTORY include/tutti DESTINATION include)
configure_package_config_file(cmake/TuttiConfig.cmake.in ${CMAKE_BINARY_DIR}/TuttiConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Tutti)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/TuttiConfigVersion.cmake COMPATIBILITY ExactVersion)
install(FILES ${CMAKE_BINARY_DIR}/TuttiConfig.cmake ${CMAKE_BINARY_DIR}/TuttiConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Tutti)

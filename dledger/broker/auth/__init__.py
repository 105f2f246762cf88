"""Access control: which client may make which request.

* `access_control`  accounts in a file (ACL 1.0, `aclEnable`); `plain_acl` the file, `address_rules` its rules
* `required`        what each request needs: sending, consuming, an administrator
* `user_access`     users and policies in the log (ACL 2.0, `authenticationEnabled`)
* `actions`         what each request does to which resource, beyond `required`; `policies` decides
* `auth_processor`  requests that show and change users and policies (3001 to 3010)
* `init_users`      users that a leader creates; `auth_settings` how settings name them
"""

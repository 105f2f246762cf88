"""Access control: which client may make which request.

* `access_control`: accounts in a file (ACL 1.0, `aclEnable`); `plain_acl` parses the file, `address_rules`
  its rules for addresses
* `required`: what each request needs, for example the permission to send, or an administrator
* `user_access`: users and policies in the log (ACL 2.0, `authenticationEnabled`)
* `actions`: which actions each request performs on which resource, if `required` does not say it; `policies`
  decides whether they are allowed
* `auth_processor`: requests that show and change users and policies (3001 to 3010)
* `init_users`: users that a leader creates; `auth_settings` parses them from the settings
"""

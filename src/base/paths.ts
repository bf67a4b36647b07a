/** Paths as text: what can be said of them without looking at any file. */

/**
 * Whether a path is absolute and in its one form, so that two such paths are the same only if their texts are: no
 * empty name, no `.` and `..`, and not `/` itself.
 */
export const isNormalPath = (path: string): boolean =>
  path.startsWith('/') &&
  path
    .slice(1)
    .split('/')
    .every((name) => name !== '' && name !== '.' && name !== '..');

/** Whether `path` is `top` or lies below it, name by name. Both are in their one form. */
export const isWithin = (path: string, top: string): boolean => path === top || path.startsWith(`${top}/`);

/** In place of node:module in a CommonJS bundle, which has a `require` of its own; Node's takes milliseconds to load. */
export const createRequire = (): NodeJS.Require => require;

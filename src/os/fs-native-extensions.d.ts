declare module 'fs-native-extensions' {
  type Extensions = {
    /** One F_OFD_SETLK; length 0 is the whole file. False for EAGAIN; throws an Error with the errno as `code`. */
    tryLock(fd: number, offset?: number, length?: number): boolean;
    unlock(fd: number, offset?: number, length?: number): void;
  };
  const extensions: Extensions;
  export = extensions;
}

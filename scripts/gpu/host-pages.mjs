// HostPages: pages of a host driver, mapped one behind the other and written to once, for sections that have a device copy to them.

export class HostPages {
  #host;
  #handles;

  /** `pages`, of the smallest size there is; or as many of the usual size as hold `bytes`. */
  constructor({ Driver }, { pages, bytes }) {
    this.#host = Driver.open('host');
    const { native, info } = this.#host;
    this.pageBytes = pages === undefined ? info.defaultPageBytes : info.granularityBytes;
    pages ??= Math.ceil(bytes / this.pageBytes);
    this.bytes = pages * this.pageBytes;
    this.address = native.reserve(this.bytes, this.pageBytes);
    this.#handles = Array.from({ length: pages }, (_, index) => {
      const at = this.address + BigInt(index * this.pageBytes);
      const page = native.createPage(this.pageBytes, at);
      native.map(at, this.pageBytes, page);
      return page;
    });
    native.setAccess(this.address, this.bytes);
    native.fill(this.address, 1, this.bytes, 0n); // every page has its memory
  }

  close() {
    const { native } = this.#host;
    native.unmap(this.address, this.bytes);
    for (const page of this.#handles) native.releasePage(page, this.pageBytes);
    native.freeReservation(this.address, this.bytes);
    this.#host.close();
  }
}
